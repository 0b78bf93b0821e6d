"""Why the first door refuses a request, in words for whoever sent it and as metrics count it."""

from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus

RETRY_SECONDS = 30
"""When to try again, for people alone.

As `details.retryAfterSeconds` of the answer the API server would send it as Retry-After, and client-go's clients wait
that long ten times before they say why: kubectl for 5 minutes, and a controller's worker, which others need.
"""


class Why(Enum):
    """Why a request is refused, as metrics count it, with the API's code and word."""

    UNREADABLE = ("unreadable", HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid")
    SCHEDULER = ("scheduler", HTTPStatus.FORBIDDEN, "Forbidden")
    PRIORITY_CLASS = ("priority-class", HTTPStatus.FORBIDDEN, "Forbidden")
    QUEUE_FULL = ("queue-full", HTTPStatus.TOO_MANY_REQUESTS, "TooManyRequests")
    NEVER_FITS = ("never-fits", HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid")
    MIG_PROFILE = ("mig-profile", HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid")
    GATE = ("gate", HTTPStatus.FORBIDDEN, "Forbidden")
    ANNOTATION = ("annotation", HTTPStatus.FORBIDDEN, "Forbidden")
    CLOSED = ("rule-closed", HTTPStatus.FORBIDDEN, "Forbidden")
    MIN_MEMORY = ("rule-min-memory", HTTPStatus.FORBIDDEN, "Forbidden")
    FORM = ("rule-form", HTTPStatus.FORBIDDEN, "Forbidden")
    MAX_GPUS = ("rule-max-gpus", HTTPStatus.FORBIDDEN, "Forbidden")
    MODELS = ("rule-models", HTTPStatus.FORBIDDEN, "Forbidden")
    HEADROOM = ("rule-headroom", HTTPStatus.TOO_MANY_REQUESTS, "TooManyRequests")

    def __init__(self, label: str, code: HTTPStatus, reason: str) -> None:
        self.label = label
        self.code = code
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Refusal:
    """`message` is a sentence for whoever sent the request; `tenant` is whose pod it was, if anybody's."""

    why: Why
    message: str
    tenant: str | None = None
