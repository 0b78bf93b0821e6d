"""The door Place: Filter, Prioritize and Preempt as bytes → decide → bytes, all synchronous.

Errors travel as the protocol allows: 200 + `Error` for Filter; the other two have no such field, so they raise
Refusal, which becomes a status.
"""

import functools
import time
from collections.abc import Callable

import msgspec
import numpy as np
import structlog
from numpy.typing import NDArray

from _core import UNKNOWN, failures_json, names_json, priorities_json
from extender.cluster.events import Claimed, Unclaimed
from extender.cluster.request import Request, RequestError, request_of
from extender.cluster.snapshot import Snapshot
from extender.config import Config
from extender.decide.bind import describe
from extender.decide.filter import filter_nodes
from extender.decide.place import Expected, Placement, expect
from extender.decide.plan import Answer
from extender.decide.preempt import Guard, Protection, victims_by_node
from extender.decide.prioritize import grade_nodes
from extender.decide.reasons import SENTENCES, UNRESOLVABLE, fragments, mask, tally
from extender.serve.book import Book, Refusal
from extender.serve.metrics import Metrics
from extender.wire.extender import (
    ExtenderArgs,
    WireError,
    decode_args,
    decode_preemption,
    filter_error,
    filter_result,
    preemption_result,
)
from extender.wire.objects import Pod

log = structlog.get_logger()

_FRAGMENTS = fragments()
_UNRESOLVABLE = mask(UNRESOLVABLE)
_RESOLVABLE = mask(SENTENCES.keys() - UNRESOLVABLE)


class PlaceDoor:
    """Does this node hold, and if there is a choice, which is best?

    `later` does what may wait until the answer is on its way: Filter's log line and its metrics. `turn` says where a
    pod may go by its turn, None for anywhere; `elsewhere` hears that the scheduler does not take it there, but would on
    other rows; `guard` says what it must spare when it preempts. `clock` is that of soft claims.
    """

    def __init__(
        self,
        book: Book,
        config: Config,
        metrics: Metrics,
        later: Callable[[Callable[[], object]], object] = lambda work: work(),
        turn: Callable[[Pod], Answer | None] = lambda pod: None,
        elsewhere: Callable[[Pod, NDArray[np.int32]], None] = lambda pod, rows: None,
        guard: Callable[[str, Protection], Guard] = lambda uid, base: base,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._elsewhere = elsewhere
        self._later = later
        self._guard = guard
        self._turn = turn
        self._book = book
        self._config = config
        self._metrics = metrics
        self._protection = Protection(
            frozenset(config.preemption.protected_namespaces), config.preemption.protected_priority
        )

    def filter(self, body: bytes) -> bytes:
        started = time.perf_counter()
        try:
            outcome, answer = self._filter(self._args(body))
        except (WireError, Refusal, ValueError) as error:
            log.info("filter: not answered", error=str(error))
            outcome, answer = "error", filter_error(str(error))
        seconds = time.perf_counter() - started
        self._later(functools.partial(self._metrics.decided, "filter", outcome, seconds))
        return answer

    def _filter(self, args: ExtenderArgs) -> tuple[str, bytes]:
        pod = args.pod
        try:
            request = request_of(pod)
        except RequestError as error:
            self._say("filter: refused", pod, None, reason=str(error))
            return "refused", _refused_everywhere(args.node_names, str(error))
        if not request.devices:
            _listed(args.node_names)
            return "kept", filter_result(args.node_names, b"{}", b"{}")
        snapshot = self._book.snapshot()
        rows, strangers = snapshot.index.lookup(args.node_names)
        answer = self._turn(pod)
        if answer is not None and answer.node is not None and snapshot.index.get(answer.node) not in rows:
            self._elsewhere(pod, rows)
            answer = self._turn(pod)
        if answer is not None and answer.node is None:
            self._say("filter: not its turn", pod, request, reason=answer.reason)
            return "waits", _not_its_turn(args.node_names, answer.reason)
        snapshot = self._unclaimed(self._book.snapshot(), pod)
        placement = filter_nodes(snapshot, pod.metadata.uid, request, rows, self._config.filter.keep)
        kept = placement.kept
        if not len(kept):
            why = tally(placement.codes)
            self._say("filter: refused", pod, request, nodes=len(rows), **why)
            return "refused", _refused(snapshot, placement, strangers)
        found = filter_result(names_json(snapshot.index, kept), b"{}", b"{}")
        best = self._claim(pod, request, snapshot, placement)
        self._say("filter", pod, request, nodes=len(rows), kept=len(kept), **_chosen(best))
        return "kept", found

    def prioritize(self, body: bytes) -> bytes:
        started = time.perf_counter()
        try:
            args = self._args(body)
            answer = self._prioritize(args, request_of(args.pod))
        except (WireError, Refusal, ValueError) as error:
            self._metrics.decided("prioritize", "error", time.perf_counter() - started)
            raise Refusal(str(error)) from None
        self._metrics.decided("prioritize", "graded", time.perf_counter() - started)
        return answer

    def _prioritize(self, args: ExtenderArgs, request: Request) -> bytes:
        uid = args.pod.metadata.uid
        snapshot = self._book.snapshot()
        rows, _ = snapshot.index.lookup(args.node_names)
        snapshot = self._unclaimed(snapshot, args.pod)
        placement, grades = grade_nodes(snapshot, uid, request, rows)
        answer = priorities_json(snapshot.index, rows, grades)
        # A pod without GPU has no seat to claim, but its cores can strand GPUs, so it is weighed like the others.
        best = self._claim(args.pod, request, snapshot, placement) if request.devices else None
        log.debug("prioritize", pod=_named(args.pod), nodes=len(rows), **_chosen(best))
        return answer

    def preempt(self, body: bytes) -> bytes:
        started = time.perf_counter()
        try:
            self._book.trust()
            args = decode_preemption(body)
            request = request_of(args.pod)
        except (WireError, Refusal, ValueError) as error:
            self._metrics.decided("preempt", "error", time.perf_counter() - started)
            raise Refusal(str(error)) from None
        priority = (args.pod.spec.priority if args.pod.spec else None) or 0
        uid = args.pod.metadata.uid
        guard = self._guard(uid, self._protection)
        victims = victims_by_node(self._book.snapshot(), uid, request, priority, args.victims, guard)
        log.info("preempt", pod=_named(args.pod), candidates=len(args.victims), nodes=len(victims))
        self._metrics.decided("preempt", "answered", time.perf_counter() - started)
        return preemption_result(victims)

    def _say(self, decision: str, pod: Pod, request: Request | None, **facts: object) -> None:
        self._later(functools.partial(_tell, decision, pod, request, facts))

    def _unclaimed(self, snapshot: Snapshot, pod: Pod) -> Snapshot:
        """The book without the pod's own soft claim, which would make its best node look taken."""
        if pod.metadata.uid not in snapshot.claims:
            return snapshot
        self._book.apply(Unclaimed(pod.metadata.uid))
        return self._book.snapshot()

    def _claim(self, pod: Pod, request: Request, snapshot: Snapshot, placement: Placement) -> Expected | None:
        """Leave a soft claim where the pod will probably sit, so that a burst does not aim at one card."""
        if pod.metadata.uid in snapshot.seats:
            return None
        expected = expect(snapshot, request, placement)
        if expected is None:
            return None
        if self._config.claims.soft > 0:
            until = self._clock() + self._config.claims.soft
            self._book.apply(Claimed(pod, request, expected.node, expected.cards, until))
        return expected

    def _args(self, body: bytes) -> ExtenderArgs:
        self._book.trust()
        args = decode_args(body)
        if not args.pod.metadata.uid:
            raise WireError(
                "Pod.metadata.uid is missing or empty: without it the pod can't be told from others"
            )
        return args


def _tell(decision: str, pod: Pod, request: Request | None, facts: dict[str, object]) -> None:
    asks = {} if request is None else {"asks": describe(request)}
    log.info(decision, pod=_named(pod), **asks, **facts)


def _chosen(best: Expected | None) -> dict[str, object]:
    return {} if best is None else {"best": best.node, "score": best.score}


def _refused(snapshot: Snapshot, placement: Placement, strangers: list[str]) -> bytes:
    rows, codes = placement.rows, placement.codes
    failed = failures_json(snapshot.index, rows, codes, _FRAGMENTS, _RESOLVABLE)
    if strangers:
        unknown = msgspec.json.encode(dict.fromkeys(strangers, SENTENCES[UNKNOWN]))
        failed = unknown if failed == b"{}" else failed[:-1] + b"," + unknown[1:]
    return filter_result(b"[]", failed, failures_json(snapshot.index, rows, codes, _FRAGMENTS, _UNRESOLVABLE))


def _not_its_turn(names: memoryview, reason: str) -> bytes:
    """Unresolvable: evicting others would not make it the pod's turn."""
    return filter_result(b"[]", b"{}", msgspec.json.encode(dict.fromkeys(_listed(names), reason)))


def _refused_everywhere(names: memoryview, reason: str) -> bytes:
    return filter_result(b"[]", b"{}", msgspec.json.encode(dict.fromkeys(_listed(names), reason)))


def _listed(names: memoryview) -> list[str]:
    try:
        return msgspec.json.decode(names, type=list[str])
    except msgspec.MsgspecError as error:
        raise WireError(f"NodeNames: {error}") from None


def _named(pod: Pod) -> str:
    return f"{pod.metadata.namespace or 'default'}/{pod.metadata.name}"
