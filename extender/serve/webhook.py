"""The door Admit: AdmissionReviews as bytes → decide → bytes, all synchronous, with no call to the API server.

A body that is no review raises Refusal, which becomes status 400; everything else is answered under the review's uid.
What a validating review let pass counts in its queue at once, so that a burst can't slip in before the watch tells.
"""

import time
from collections.abc import Callable, Container, Mapping
from functools import partial

import structlog

from extender.config import Config
from extender.decide.admit import Admission, Moment, Policies, mutate, validate
from extender.decide.refusal import Refusal
from extender.decide.rules import Room
from extender.fairness.depth import QueueDepths
from extender.fairness.policy import Policy
from extender.serve import book
from extender.serve.metrics import Metrics
from extender.wire.admission import Review, ReviewError, allowed, decode_review, denied
from extender.wire.objects import Pod

log = structlog.get_logger()

Decide = Callable[[Review], bytes | Refusal]


def admission(
    config: Config,
    policies: Policies,
    namespace_labels: Callable[[str], Mapping[str, str]],
    preemptible_classes: Container[str] = frozenset(),
    never_fits: Callable[[Policy, Pod], bool] = lambda policy, pod: False,
    room: Callable[[Policy, Pod], Room | None] = lambda policy, pod: None,
    offers: Callable[[Policy | None], frozenset[str] | None] = lambda policy: None,
) -> Admission:
    """What the door goes by: what the configuration says, and what the watches show at each moment."""
    ours = config.admission
    return Admission(
        policies,
        namespace_labels,
        frozenset(ours.schedulers),
        frozenset(ours.writers),
        preemptible_classes,
        never_fits,
        room,
        offers,
    )


class WebhookDoor:
    """Should this pod be accepted at all, and what does it need to wait for its turn?

    `depths` is fed from the watch by others; `clock` gives the seconds that it counts in, `wall` those since 1970.
    """

    def __init__(
        self,
        admission: Admission,
        depths: QueueDepths,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._admission = admission
        self._depths = depths
        self._metrics = metrics
        self._clock = clock
        self._wall = wall

    def mutate(self, body: bytes) -> bytes:
        """Answer a mutating review."""
        return self._answer("mutate", body, self._mutate)

    def validate(self, body: bytes) -> bytes:
        """Answer a validating review."""
        return self._answer("validate", body, self._validate)

    def _mutate(self, review: Review) -> bytes | Refusal:
        found = mutate(review, self._admission)
        if isinstance(found, Refusal):
            return found
        return allowed(review.uid, found.patch, found.warnings)

    def _validate(self, review: Review) -> bytes | Refusal:
        now = self._clock()
        moment = Moment(
            self._wall(), partial(self._depths.depth, now=now), partial(self._depths.coming, now=now)
        )
        found = validate(review, self._admission, moment)
        if isinstance(found, Refusal):
            return found
        if found.queue is not None and review.pod is not None and not review.dry_run:
            self._depths.allowed(review.pod.metadata.uid, found.queue, now, found.units)
        for refusal in found.trial:
            self._tell("admit: would be refused", review, refusal)
            if not review.dry_run:
                self._metrics.would_refuse(refusal.tenant or "", refusal.why.label)
        return allowed(review.uid, (), found.warnings)

    def _answer(self, verb: str, body: bytes, decide: Decide) -> bytes:
        started = time.perf_counter()
        outcome, answer = "error", b""
        try:
            review = decode_review(body)
            found = decide(review)
            if isinstance(found, Refusal):
                outcome, answer = "refused", self._refused(review, found)
            else:
                outcome, answer = "allowed", found
        except ReviewError as error:
            log.warning(f"{verb}: the review can't be read", error=str(error))
            if error.uid is None:
                raise book.Refusal(str(error)) from None
            answer = denied(error.uid, 400, "BadRequest", str(error))
        finally:
            self._metrics.decided(verb, outcome, time.perf_counter() - started)
        return answer

    def _refused(self, review: Review, refusal: Refusal) -> bytes:
        why = refusal.why
        if not review.dry_run:
            self._metrics.refused(refusal.tenant or "", why.label)
        self._tell("admit: refused", review, refusal)
        return denied(review.uid, why.code, why.reason, f"kvitej: {refusal.message}")

    def _tell(self, what: str, review: Review, refusal: Refusal) -> None:
        pod = review.pod.metadata.name if review.pod else ""
        log.info(what, pod=f"{review.namespace}/{pod}", why=refusal.why.label, reason=refusal.message)
