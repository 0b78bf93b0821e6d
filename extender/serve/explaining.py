"""`kvitej explain` as HTTP: a pod's name, or its manifest, → why it waits and where it would go, in words."""

from collections.abc import Callable

import msgspec

from extender.cluster.request import RequestError, request_of
from extender.decide.explain import explain
from extender.decide.plan import Planner
from extender.serve.book import Book, Refusal
from extender.wire.objects import Pod


class ExplainDoor:
    """Reads the book and the planner, if there is one; changes nothing."""

    def __init__(self, book: Book, planner: Callable[[], Planner | None] = lambda: None) -> None:
        self._book = book
        self._planner = planner

    def named(self, pod: str, node: str | None) -> str:
        """Explain a pod that the book knows, as `namespace/name`; Refusal where it does not."""
        snapshot = self._book.snapshot()
        namespace, _, name = pod.rpartition("/")
        wanted = (namespace or "default", name)
        for seat in snapshot.seats.values():
            if (seat.namespace, seat.name) == wanted:
                held = f", which records {seat.record}" if seat.record else ""
                told = f"pod {wanted[0]}/{name} is {seat.phase.value} on {seat.node}{held}"
                return "\n".join((told, *self._why_it_waits(seat.uid))) + "\n"
        known = [waiting.pod for waiting in snapshot.waiting.values()]
        for found in known + [claim.pod for claim in snapshot.claims.values()]:
            if (found.metadata.namespace or "default", found.metadata.name) == wanted:
                return self._explain(found, node)
        raise Refusal(
            f"no GPU pod {wanted[0]}/{name} waits or sits here; name it as namespace/name, "
            "or hand its manifest over with --pod FILE"
        )

    def manifest(self, body: bytes, node: str | None) -> str:
        """Explain a pod that need not exist, from its JSON."""
        try:
            pod = msgspec.json.decode(body, type=Pod)
        except msgspec.MsgspecError as error:
            raise Refusal(f"this is not a pod: {error}") from None
        return self._explain(pod, node)

    def _explain(self, pod: Pod, node: str | None) -> str:
        try:
            found = explain(self._book.snapshot(), request_of(pod), node, borrowed=self._borrowed(pod))
        except RequestError as error:
            raise Refusal(str(error)) from None
        except KeyError:
            raise Refusal(f"kvitej knows no node {node!r}") from None
        name = f"{pod.metadata.namespace or 'default'}/{pod.metadata.name or '(no name)'}"
        waits = self._why_it_waits(pod.metadata.uid)
        return "\n".join((f"pod {name}", *waits, *found.words())) + "\n"

    def _borrowed(self, pod: Pod) -> bool | None:
        """Whether the pod's work can be asked back; None where no policy says so."""
        planner = self._planner()
        waiter = planner.waiters.get(pod.metadata.uid) if planner is not None else None
        return waiter.preemptible if waiter is not None and waiter.covered else None

    def _why_it_waits(self, uid: str) -> tuple[str, ...]:
        """Its place in line, who is ahead and why, and what it waits for; nothing for a pod that does not wait."""
        planner = self._planner()
        return planner.explain(uid).sentences if planner is not None and uid in planner.waiters else ()
