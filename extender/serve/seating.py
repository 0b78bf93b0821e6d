"""The door Seat: Bind. Is the seat really free, now? Then reserve it, write the Binding, and settle.

Nothing awaits between the decision and the reservation. An answer that was lost keeps the seat until a read of the
pod or the watch tells; meanwhile Filter sends the pod to that node only, so a second Bind settles it too.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import structlog

from extender.cluster.events import BindResult, Outcome, Reserved, Settled
from extender.cluster.request import RequestError, is_over, request_of
from extender.cluster.seats import Phase
from extender.config import Config
from extender.decide.bind import AlreadyBound, Granted, Veto, seat_pod
from extender.decide.plan import Answer
from extender.serve.book import Book, Refusal
from extender.serve.metrics import Metrics
from extender.wire.devices import ANNOTATION
from extender.wire.extender import BindingArgs, WireError, binding_result, decode_binding
from extender.wire.objects import Pod

log = structlog.get_logger()

_STILL_POSSIBLE = 60.0
"""Seconds after which a write whose answer was lost can't happen any more: the API server's own request timeout."""


class Writer(Protocol):
    """Who writes to the API server; `read` raises ConnectionError when it can't say."""

    async def bind(
        self, *, namespace: str, name: str, uid: str, node: str, annotations: dict[str, str]
    ) -> BindResult: ...

    async def read(self, namespace: str, name: str) -> Pod | None: ...


class SeatDoor:
    """`vetoed` is told of every veto, with its reason. `turn` says where a pod may go by its turn; None: anywhere."""

    def __init__(
        self,
        book: Book,
        writer: Writer,
        config: Config,
        metrics: Metrics,
        vetoed: Callable[[BindingArgs, str], None] = lambda args, reason: None,
        turn: Callable[[Pod], Answer | None] = lambda pod: None,
    ) -> None:
        self._turn = turn
        self._book = book
        self._writer = writer
        self._metrics = metrics
        self._vetoed = vetoed
        self._writes = asyncio.Semaphore(config.bind.in_flight)
        self._settling: set[asyncio.Task[None]] = set()

    async def bind(self, body: bytes) -> bytes:
        started = time.perf_counter()
        try:
            args = decode_binding(body)
        except WireError as error:
            self._metrics.decided("bind", "error", time.perf_counter() - started)
            return binding_result(str(error))
        async with self._writes:
            outcome, reason = await self._bind(args)
        log.info(
            f"bind: {outcome}",
            pod=f"{args.namespace}/{args.name}",
            node=args.node,
            **({"reason": reason} if reason else {}),
        )
        if outcome == "vetoed":
            self._vetoed(args, reason)
        self._metrics.decided("bind", outcome, time.perf_counter() - started)
        return binding_result(reason)

    async def _bind(self, args: BindingArgs) -> tuple[str, str]:
        """(outcome, what to tell the scheduler: empty when bound)."""
        try:
            pod = self._known(args) or await self._read(args)
            request = request_of(pod)
            self._book.trust()
        except Refusal as refusal:
            return "error", str(refusal)
        except RequestError as error:
            return "vetoed", str(error)
        answer = self._turn(pod)
        snapshot = self._book.snapshot()
        verdict = seat_pod(snapshot, args.uid, request, args.node)
        # What stands against the node is why the pod has lost its turn, if it has; so it comes first.
        if isinstance(verdict, Veto):
            return "vetoed", verdict.reason
        if answer is not None and answer.node is None and request.devices:
            return "vetoed", answer.reason
        match verdict:
            case AlreadyBound():
                return "bound", ""
            case Granted(devices):
                held = snapshot.seats.get(args.uid)
                again = held is not None and held.phase is Phase.UNCERTAIN
                self._book.apply(Reserved(pod, args.node, devices))
                return await self._write(args, {} if devices is None else {ANNOTATION: devices}, again)

    async def _write(self, args: BindingArgs, annotations: dict[str, str], again: bool) -> tuple[str, str]:
        """Write and settle; `again`: an earlier write is in doubt, so that a refusal of this one decides nothing."""
        result = BindResult(Outcome.UNKNOWN, "the write was interrupted")
        try:
            result = await self._writer.bind(
                namespace=args.namespace,
                name=args.name,
                uid=args.uid,
                node=args.node,
                annotations=annotations,
            )
        finally:
            outcome = Outcome.UNKNOWN if again and result.outcome is Outcome.REFUSED else result.outcome
            self._book.apply(Settled(args.uid, outcome))
            if outcome is Outcome.UNKNOWN:
                task = asyncio.create_task(self._settle(args))
                self._settling.add(task)
                task.add_done_callback(self._settling.discard)
        if result.outcome is Outcome.BOUND:
            return "bound", ""
        return "unknown" if result.outcome is Outcome.UNKNOWN else "failed", result.detail

    async def _settle(self, args: BindingArgs) -> None:
        """Read the pod until it is known where it sits; let go when the lost write can't happen any more."""
        clock = asyncio.get_running_loop().time
        lost = clock()
        pause = 0.5
        while True:
            await asyncio.sleep(pause)
            pause = min(pause * 2, 5.0)
            seat = self._book.snapshot().seats.get(args.uid)
            if seat is None or seat.phase is not Phase.UNCERTAIN:
                return
            try:
                pod = await self._writer.read(args.namespace, args.name)
            except ConnectionError:
                lost = clock()
                continue
            if pod is not None and pod.metadata.uid == args.uid and not is_over(pod):
                node = pod.spec.node_name if pod.spec else None
                if node is None and clock() - lost < _STILL_POSSIBLE:
                    continue
                outcome = Outcome.BOUND if node == args.node else Outcome.REFUSED
            else:
                outcome = Outcome.REFUSED
            seat = self._book.snapshot().seats.get(args.uid)
            if seat is not None and seat.phase is Phase.UNCERTAIN:
                log.info(
                    "bind: settled",
                    pod=f"{args.namespace}/{args.name}",
                    node=args.node,
                    outcome=outcome.value,
                )
                self._book.apply(Settled(args.uid, outcome))
            return

    def _known(self, args: BindingArgs) -> Pod | None:
        snapshot = self._book.snapshot()
        if args.uid in snapshot.waiting:
            return snapshot.waiting[args.uid].pod
        return snapshot.claims[args.uid].pod if args.uid in snapshot.claims else None

    async def _read(self, args: BindingArgs) -> Pod:
        try:
            pod = await self._writer.read(args.namespace, args.name)
        except ConnectionError as error:
            raise Refusal(f"pod {args.namespace}/{args.name} could not be read: {error}") from None
        if pod is None or pod.metadata.uid != args.uid:
            raise Refusal(f"pod {args.namespace}/{args.name} with uid {args.uid} is gone")
        if is_over(pod):
            # The watch tells of no more than this pod's end, so nothing would ever release its seat.
            raise Refusal(f"pod {args.namespace}/{args.name} is over")
        return pod
