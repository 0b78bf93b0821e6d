"""Writes to pods: the Binding that seats one, the read that settles a lost answer, the nudge that wakes one.

A Binding carries the pod's uid as a precondition and our annotations, so that seat and record are one write.
Its outcome is never guessed: BOUND and REFUSED are certain, everything else is UNKNOWN.
"""

import time
from datetime import UTC, datetime
from urllib.parse import quote

import msgspec

from extender.cluster.events import BindResult, Outcome
from extender.cluster.request import is_over
from extender.kube.client import (
    MERGE_PATCH,
    AnswerLostError,
    ApiError,
    Client,
    NotSentError,
    StatusError,
)
from extender.wire.objects import Binding, Pod

RETRY_ANNOTATION = "kvitej.io/retry"
_WRITE_SHARE = 2 / 3
"""Of a bind's time; the rest is for asking what became of it."""


class Writer:
    """Calls that change pods; `timeout` in seconds holds for each call of its methods as a whole."""

    def __init__(self, client: Client, timeout: float) -> None:
        self._client = client
        self._timeout = timeout
        self._encoder = msgspec.json.Encoder()
        self._pods = msgspec.json.Decoder(Pod)

    async def bind(
        self, *, namespace: str, name: str, uid: str, node: str, annotations: dict[str, str]
    ) -> BindResult:
        """Bind the pod to the node. Raises nothing but cancellation, which leaves the outcome unknown."""
        deadline = time.monotonic() + self._timeout
        metadata = {"namespace": namespace, "name": name, "uid": uid, "annotations": annotations}
        binding = Binding("v1", "Binding", metadata, {"apiVersion": "v1", "kind": "Node", "name": node})
        try:
            answer = await self._client.post(
                pod_path(namespace, name) + "/binding",
                self._encoder.encode(binding),
                timeout=self._timeout * _WRITE_SHARE,
            )
        except NotSentError as failure:
            return BindResult(Outcome.REFUSED, str(failure))
        except AnswerLostError as failure:
            return await self._ask(namespace, name, uid, node, deadline, str(failure), decisive=False)
        if 200 <= answer.status < 300:
            return BindResult(Outcome.BOUND, "")
        detail = str(StatusError(answer))
        if answer.status == 404:
            return BindResult(Outcome.REFUSED, f"Pod {namespace}/{name} is gone.")
        if answer.status == 409 or answer.status >= 500:
            return await self._ask(
                namespace, name, uid, node, deadline, detail, decisive=answer.status == 409
            )
        return BindResult(Outcome.REFUSED, detail)

    async def read(self, namespace: str, name: str, *, timeout: float | None = None) -> Pod | None:
        """The pod as it is now, or None when there is none of this name.

        Raises
        ------
        ApiError
            Neither can be said.
        """
        answer = await self._client.get(pod_path(namespace, name), timeout=timeout or self._timeout)
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise StatusError(answer)
        try:
            return self._pods.decode(answer.body)
        except msgspec.DecodeError as error:
            raise ApiError(f"Pod {namespace}/{name} cannot be read: {error}.") from error

    async def nudge(self, namespace: str, name: str, uid: str) -> bool:
        """Have the scheduler try a pod again that Filter left without a node; False when that pod is gone.

        On any update of a pending pod, kube-scheduler asks those who rejected it whether to retry, and for an
        extender the answer is always yes; an annotation is the smallest update.
        """
        metadata = {"uid": uid, "annotations": {RETRY_ANNOTATION: datetime.now(UTC).isoformat()}}
        answer = await self._client.patch(
            pod_path(namespace, name),
            self._encoder.encode({"metadata": metadata}),
            MERGE_PATCH,
            timeout=self._timeout,
        )
        if answer.status in (404, 409, 422):
            return False
        if answer.status != 200:
            raise StatusError(answer)
        return True

    async def _ask(
        self, namespace: str, name: str, uid: str, node: str, deadline: float, detail: str, *, decisive: bool
    ) -> BindResult:
        """Read what became of a Binding; `decisive`: the write is over, so an unbound pod means no."""
        try:
            pod = await self.read(namespace, name, timeout=max(deadline - time.monotonic(), 0.1))
        except ApiError as failure:
            return BindResult(Outcome.UNKNOWN, f"{detail} Asking again did not help: {failure}")
        if pod is None or is_over(pod):
            return BindResult(Outcome.REFUSED, f"Pod {namespace}/{name} is {'over' if pod else 'gone'}.")
        if pod.metadata.uid != uid:
            return BindResult(
                Outcome.REFUSED, f"Pod {namespace}/{name} was re-created: uid {pod.metadata.uid}, not {uid}."
            )
        sits = pod.spec.node_name if pod.spec else None
        if sits == node:
            return BindResult(Outcome.BOUND, f"{detail} The pod is bound to {node}.")
        if sits:
            return BindResult(Outcome.REFUSED, f"Pod {namespace}/{name} is already bound to {sits}.")
        return BindResult(Outcome.REFUSED if decisive else Outcome.UNKNOWN, detail)


def pod_path(namespace: str, name: str) -> str:
    """The path of a pod, with both names quoted."""
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"
